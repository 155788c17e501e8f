"""What every scope shares: the decorator, the subject, examine, watch."""
