"""Reproductions of published figures and tables. Installed code never imports this package."""
