package run

import (
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
)

// TestGuardsAgainstPrivateAddressesLetNamesPass has libraries that refuse to connect to private addresses ask for an allowed
// name, by IPv4 and IPv6. What they refuse otherwise, they still refuse.
func TestGuardsAgainstPrivateAddressesLetNamesPass(t *testing.T) {
	d := world.NewDaemon(t, "version: 1\nallow: [\"a.allowed.test\"]\n")
	t.Setenv("NODE_PATH", world.Source("tools", "npm", "node_modules"))
	const get = `const http = require("http"), get = (url, agent) => new Promise(done => http.get(url, {agent, family: +process.argv[1]}, r => done(r.statusCode)).on("error", e => done(e.message)))
const url = "http://a.allowed.test/", own = "http://127.0.0.1:9/"
`
	for name, script := range map[string]string{
		"request-filtering-agent": get + `const {useAgent} = require("request-filtering-agent"); (async () => { console.log(await get(url, useAgent(url))); let refused; try { refused = /not allowed/.test(await get(own, useAgent(own))) } catch (e) { refused = true }; console.log(refused) })()`,
		"ssrf-req-filter":         get + `const filter = require("ssrf-req-filter"); (async () => { console.log(await get(url, filter(url))); let refused; try { refused = /not allowed|blocked/.test(await get(own, filter(own))) } catch (e) { refused = true }; console.log(refused) })()`,
	} {
		for _, family := range []string{"4", "6"} {
			if r := runAs(t, d, "user", "node -e '"+script+"' "+family); r.out != "200\ntrue\n" {
				t.Errorf("%s, IPv%s: %q %q", name, family, r.out, r.talk)
			}
		}
	}
	const python = `import ipaddress, socket
for a in socket.getaddrinfo("a.allowed.test", 80, type=socket.SOCK_STREAM): print(ipaddress.ip_address(a[4][0]).is_global)`
	if r := runAs(t, d, "user", "/usr/bin/python3 -c '"+python+"'"); strings.TrimSpace(strings.ReplaceAll(r.out, "True", "")) != "" || !strings.Contains(r.out, "True") {
		t.Errorf("Python: %q %q", r.out, r.talk)
	}
}
