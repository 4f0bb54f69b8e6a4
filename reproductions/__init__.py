"""Figures and tables of the papers, made again with penstock; nothing that is installed imports this."""
