"""Virtual time: the same roles under every misfortune, one seed a history."""
