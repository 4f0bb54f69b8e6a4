"""Figures and tables of published papers, reproduced with penstock. No installed code imports this package."""
