"""The trade-off between long-term memory and smoothness for recurrent networks (Ribeiro et al. 2019)."""
