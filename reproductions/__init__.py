"""Figures and tables of published papers, reproduced with penstock; no installed code imports this package."""
