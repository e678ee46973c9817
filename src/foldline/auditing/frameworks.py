"""Findings in the words of public catalogues, each in the version it was read from (checked November 2026)."""

from __future__ import annotations

from foldline.reports.document import Reference

ATLAS = ("MITRE ATLAS", "5.4.0 (February 2026)")
OWASP = ("OWASP Machine Learning Security Top 10", "2023, draft v0.3")
NIST = ("NIST AI 100-2", "E2025 (March 2025)")


def atlas(id: str, name: str) -> Reference:
    return Reference(framework=ATLAS[0], version=ATLAS[1], id=id, name=name,
                     url=f"https://atlas.mitre.org/techniques/{id}")


def owasp(id: str, name: str) -> Reference:
    return Reference(framework=OWASP[0], version=OWASP[1], id=f"{id}:2023", name=name,
                     url="https://owasp.org/www-project-machine-learning-security-top-10/")


def nist(id: str, name: str) -> Reference:
    return Reference(framework=NIST[0], version=NIST[1], id=id, name=name,
                     url="https://doi.org/10.6028/NIST.AI.100-2e2025")


MEMBERSHIP = atlas("AML.T0024.000", "Infer Training Data Membership")
INVERT = atlas("AML.T0024.001", "Invert AI Model")
EXTRACT = atlas("AML.T0024.002", "Extract AI Model")
FULL_ACCESS = atlas("AML.T0044", "Full AI Model Access")
INVERSION = owasp("ML03", "Model Inversion Attack")
THEFT = owasp("ML05", "Model Theft")
EXTRACTION = nist("NISTAML.031", "Model Extraction")
RECONSTRUCTION = nist("NISTAML.032", "Reconstruction")

# A recovered sample is a member by construction, so reconstruction also infers membership.
BY_FINDING: dict[str, list[Reference]] = {
    "training-data": [INVERT, MEMBERSHIP, INVERSION, RECONSTRUCTION],
    "training-data-weights": [FULL_ACCESS, INVERT, MEMBERSHIP, INVERSION, RECONSTRUCTION],
    "span": [INVERT, INVERSION, RECONSTRUCTION],
    "imitation": [EXTRACT, THEFT, EXTRACTION],
    "extraction": [EXTRACT, FULL_ACCESS, THEFT, EXTRACTION],
    "learning": [EXTRACT, FULL_ACCESS, THEFT, EXTRACTION],
    "training-data-labels": [INVERT, MEMBERSHIP, INVERSION, RECONSTRUCTION],
    "label-span": [INVERT, INVERSION, RECONSTRUCTION],
    "obfuscation": [EXTRACT, THEFT, EXTRACTION],
}
