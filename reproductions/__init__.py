"""Reproductions of figures and tables from published papers. No installed code imports this package."""
