"""Figures and tables of the papers, reproduced with penstock; nothing that is installed imports this."""
