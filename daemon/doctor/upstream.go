package doctor

import "github.com/egressd/egressd/config"

// upstreamFindings are about the proxy that egressd connects through.
func upstreamFindings(c *config.Config) []Finding {
	p := c.File.Upstream.Proxy
	switch {
	case p == nil:
		return nil
	case p.ByName:
		return []Finding{{Check: "upstream", Says: p.GivesUp()}}
	}
	all := []Finding{{Check: "upstream", Says: "connections go through " + p.URL() + ", to addresses that were decided"}}
	if p.User != "" && !p.TLS {
		all = append(all, Finding{Check: "upstream", Says: "the password for " + p.URL() + " crosses the network in clear"})
	}
	return all
}
