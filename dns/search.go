package dns

import (
	"bufio"
	"os"
	"strings"

	"github.com/egressd/egressd/policy"
)

const searchMost = 6 // domains of a search list, as many as the C library took for long

// SystemSearch returns the domains in which a resolv.conf(5) has names without a dot looked up: those of its last search or
// domain line. They are canonical. A file that cannot be read has none.
func SystemSearch(resolvConf string) (domains []string) {
	f, err := os.Open(resolvConf)
	if err != nil {
		return nil
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || fields[0] != "search" && fields[0] != "domain" {
			continue
		}
		domains = nil
		for _, domain := range fields[1:] {
			if name, err := policy.ParseName(strings.ToLower(domain)); err == nil && len(domains) < searchMost {
				domains = append(domains, name)
			}
		}
	}
	return domains
}
