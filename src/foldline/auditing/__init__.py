"""From an audit file to findings: what a target gives away to the access it grants."""
