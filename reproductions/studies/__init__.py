"""Studies of the membership attack, one plug-in a file: ``privacy_gain.py`` defines the YAML type ``privacy_gain``."""
