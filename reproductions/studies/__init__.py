"""Studies from papers, with one plug-in per file. For instance, ``privacy_gain.py`` defines the YAML type
``privacy_gain``.
"""
