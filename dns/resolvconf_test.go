package dns

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestSystemUpstreams(t *testing.T) {
	for name, row := range map[string]struct {
		text string
		want []string
		err  string
	}{
		"as usual":             {"# made by a tool\nsearch corp.test\nnameserver 192.0.2.53\noptions ndots:5\n", []string{"192.0.2.53:53"}, ""},
		"IPv6 and a zone":      {"nameserver 2001:db8::53\nnameserver fe80::1%eth0", []string{"[2001:db8::53]:53", "[fe80::1%eth0]:53"}, ""},
		"mapped":               {"nameserver ::ffff:192.0.2.53", []string{"192.0.2.53:53"}, ""},
		"the first three":      {"nameserver 192.0.2.1\nnameserver 192.0.2.2\nnameserver 192.0.2.3\nnameserver 192.0.2.4\n", []string{"192.0.2.1:53", "192.0.2.2:53", "192.0.2.3:53"}, ""},
		"tabs, CR and remarks": {"\tnameserver\t192.0.2.53 # here\r\n", []string{"192.0.2.53:53"}, ""},
		"comments":             {"#nameserver 192.0.2.1\n;nameserver 192.0.2.2\n# nameserver 192.0.2.3\nnameserver 192.0.2.53\n", []string{"192.0.2.53:53"}, ""},
		"a name":               {"search a\nnameserver ns.corp.test\n", nil, `line 2: nameserver "ns.corp.test" is not an address`},
		"a port":               {"nameserver 192.0.2.53:53\n", nil, "line 1"},
		"an odd IPv4":          {"nameserver 127.1\n", nil, "line 1"},
		"a bare keyword":       {"nameserver\n", nil, "no nameserver line"},
		"empty":                {"", nil, "no nameserver line"},
		"an endless line":      {strings.Repeat("x", 1<<20) + "\nnameserver 192.0.2.53\n", nil, "too long"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "resolv.conf")
			if err := os.WriteFile(path, []byte(row.text), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := SystemUpstreams(path)
			if row.err != "" {
				if err == nil || !strings.Contains(err.Error(), row.err) {
					t.Fatalf("%v, %v; want an error with %q", got, err, row.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var text []string
			for _, a := range got {
				text = append(text, a.String())
			}
			if !slices.Equal(text, row.want) {
				t.Errorf("%q, want %q", text, row.want)
			}
		})
	}
	if _, err := SystemUpstreams(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}
