"""Measurements and bounds that several scopes share."""
