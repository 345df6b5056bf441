"""Update rules, what they keep for each parameter, and groups of parameters that are updated differently."""
