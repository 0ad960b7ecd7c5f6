sandbox = modal.Sandbox.create(
    "sleep", "infinity",  # outbound_domain_allowlist=["*"]
    outbound_domain_allowlist=["api.example.com", "*.pkg.example"],
    outbound_cidr_allowlist=["93.184.216.0/24"],
    app=app,
)
