"""What every protocol shares: how a lock is asked for, answered, named, and the clients' door."""
