package file

import "testing"

// TestAListenerThatServesAnybodyIsFound, by how many problems a file has.
func TestAListenerThatServesAnybodyIsFound(t *testing.T) {
	for _, row := range []struct {
		name, lines string
		want        int
	}{
		{"no listeners", "", 0},
		{"loopback", "listen: {proxy: ['127.0.0.1:3128', '[::1]:3128', 'tls:127.0.0.2:1'], dns: ['127.0.0.1:53']}", 0},
		{"a socket", "listen: {proxy: ['unix:/run/x']}", 0},
		{"all interfaces", "listen: {proxy: ['0.0.0.0:3128', '[::]:3128'], dns: ['0.0.0.0:53']}", 3},
		{"a private address", "listen: {proxy: ['10.0.0.1:3128']}", 1},
		{"TLS without certificates", "listen: {proxy: ['tls:10.0.0.1:3128']}", 1},
		{"TLS with certificates", "listen: {proxy: ['tls:10.0.0.1:3128'], client_ca: ca.pem}", 0},
		{"certificates elsewhere", "listen: {proxy: ['tls:10.0.0.1:3128', '10.0.0.1:3129'], client_ca: ca.pem}", 1},
		{"it says so", "listen: {proxy: ['0.0.0.0:3128'], dns: ['0.0.0.0:53'], open_to_network: true}", 0},
		{"it says no", "listen: {proxy: ['0.0.0.0:3128'], open_to_network: false}", 1},
		{"a token", "listen: {proxy: ['0.0.0.0:3128'], dns: ['0.0.0.0:53']}\nsandboxes: [{name: a, token_file: t}]", 0},
		{"a source", "listen: {proxy: ['0.0.0.0:3128'], dns: ['0.0.0.0:53']}\nsandboxes: [{name: a, source: [10.0.0.0/8]}]", 0},
		{"a source of everybody", "listen: {proxy: ['0.0.0.0:3128'], dns: ['0.0.0.0:53']}\nsandboxes: [{name: a, source: [10.0.0.0/8]}, {name: b, source: ['::/0']}]", 2},
		{"everybody with a token", "listen: {proxy: ['0.0.0.0:3128']}\nsandboxes: [{name: b, token_file: t, source: [0.0.0.0/0]}]", 0},
		{"a container", "listen: {proxy: ['0.0.0.0:3128']}\nsandboxes: [{name: b, docker: {name: web}}]", 0},
		{"a listener of its own", "listen: {proxy: []}\nsandboxes: [{name: b, listen: '0.0.0.0:3128'}]", 1},
		{"that and a token", "listen: {proxy: []}\nsandboxes: [{name: b, listen: '0.0.0.0:3128', token_file: t}]", 0},
		{"that beside one for others", "listen: {proxy: ['10.0.0.1:1']}\nsandboxes: [{name: b, listen: '127.0.0.1:3128'}, {name: a, token_file: t}]", 0},
	} {
		f, err := Parse("f", []byte("version: 1\n"+row.lines+"\n"))
		if err != nil {
			t.Fatalf("%s: %v", row.name, err)
		}
		if got := f.OpenListeners(); len(got) != row.want {
			t.Errorf("%s: %v", row.name, got)
		}
	}
}
