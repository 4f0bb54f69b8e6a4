"""Studies of the membership attack: the file ``privacy_gain.py`` holds the class that YAML calls ``privacy_gain``."""
