package file

import (
	"strings"
	"testing"
)

// TestUpstreamProxy reads one in both forms.
func TestUpstreamProxy(t *testing.T) {
	for text, want := range map[string]UpstreamProxy{
		"http://p.test:3128":          {},
		"https://p.test:3128/":        {TLS: true},
		"socks5://10.0.0.1:3128":      {SOCKS: true},
		"socks5+tls://[fd00::1]:3128": {SOCKS: true, TLS: true},
	} {
		f, err := Parse("egressd.yaml", []byte("version: 1\nupstream: {proxy: \""+text+"\"}\n"))
		if err != nil {
			t.Error(err)
			continue
		}
		got := f.Upstream.Proxy
		if got.SOCKS != want.SOCKS || got.TLS != want.TLS || got.At.Port != 3128 || got.URL() != strings.TrimSuffix(text, "/") {
			t.Errorf("%s: %+v, %s", text, got, got.URL())
		}
	}
	f, err := Parse("egressd.yaml", []byte(`version: 1
upstream:
  proxy: {url: "http://p.test:3128", user: me, password_file: "${DIR}/p", by_name: true, except: ["own.test", "10.0.0.0/8:22"]}
`))
	if err != nil {
		t.Fatal(err)
	}
	expanded, err := f.Expand(func(string) (string, bool) { return "/x", true })
	if err != nil {
		t.Fatal(err)
	}
	p := expanded.Upstream.Proxy
	if p.User != "me" || p.PasswordFile != "/x/p" || f.Upstream.Proxy.PasswordFile != "${DIR}/p" || !p.ByName {
		t.Errorf("read %+v", p)
	}
	if len(p.Except) != 2 || p.Except[0].String() != "own.test:*" || p.Except[1].String() != "10.0.0.0/8:22" {
		t.Errorf("except is %v", p.Except)
	}
	warned := strings.Join(f.Warnings(), "\n")
	if !strings.Contains(warned, "upstream.proxy has by_name") || !strings.Contains(warned, "egressd.yaml:3:") {
		t.Errorf("warned %q", warned)
	}
	if f, err := Parse("egressd.yaml", []byte("version: 1\nupstream: {proxy: null}\n")); err != nil || f.Upstream.Proxy != nil {
		t.Errorf("null: %v", err)
	}
}
