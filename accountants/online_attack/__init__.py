"""Membership attacks that learn while releases go by."""
