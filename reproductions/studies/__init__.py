"""Studies of the membership attack, one plug-in per file: ``privacy_gain.py`` defines the YAML type
``privacy_gain``.
"""
