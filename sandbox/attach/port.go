package attach

// ProxyPort is the port of the proxy, on the loopback of a network that cannot be captured.
const ProxyPort = 3128
