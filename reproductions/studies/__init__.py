"""Studies of the papers, one plug-in per file: ``privacy_gain.py`` defines the YAML type ``privacy_gain``."""
