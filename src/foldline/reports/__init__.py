"""From findings to files people and machines read: HTML, JSON, SARIF, JUnit. Nothing is computed here."""
