"""Storage: one contract, several engines, chosen by URL."""
