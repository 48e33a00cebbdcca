"""What stands between client and engine: the gateway, the peers, a bare relay, nothing."""
