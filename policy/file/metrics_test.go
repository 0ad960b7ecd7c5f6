package file

import "testing"

func TestAListenerOfMetricsAsksWhoScrapes(t *testing.T) {
	for text, good := range map[string]bool{
		"{listen: \"127.0.0.1:9465\", token_file: t}":                                         true,
		"{listen: \"[::1]:9465\", token_file: t}":                                             true,
		"{listen: \"10.0.0.5:9465\", cert_file: c, key_file: k, token_file: t}":               true,
		"{listen: \"10.0.0.5:9465\", cert_file: c, key_file: k, client_ca: a}":                true,
		"{listen: \"10.0.0.5:9465\", cert_file: c, key_file: k, client_ca: a, token_file: t}": true,
		"{token_file: t}":                                                      false, // no listener
		"{listen: \"127.0.0.1:9465\"}":                                         false, // everybody
		"{listen: \"10.0.0.5:9465\", token_file: t}":                           false, // in clear
		"{listen: \"10.0.0.5:9465\", cert_file: c, token_file: t}":             false, // no key
		"{listen: \"10.0.0.5:9465\", cert_file: c, key_file: k}":               false, // everybody
		"{listen: \"127.0.0.1:9465\", client_ca: a}":                           false, // a certificate without TLS
		"{listen: \"0.0.0.0:9465\", cert_file: c, key_file: k, token_file: t}": false, // sandboxes are kept away from one address
		"{listen: \"127.0.0.1:0\", token_file: t}":                             false,
		"{listen: \"host.test:9465\", token_file: t}":                          false,
		"{listen: \"127.0.0.1:3128\", token_file: t}":                          false, // the proxy's
		"{}": false,
	} {
		if f, err := Parse("f", []byte("version: 1\nlisten: {proxy: [\"127.0.0.1:3128\"]}\nmetrics: "+text+"\n")); (err == nil) != good {
			t.Errorf("%s: %+v, %v", text, f, err)
		}
	}
}
