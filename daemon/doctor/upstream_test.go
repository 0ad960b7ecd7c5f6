package doctor

import (
	"strings"
	"testing"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/policy/file"
)

// TestWhatAnUpstreamProxyGivesUpIsSaid by doctor, and that a password is sent in clear.
func TestWhatAnUpstreamProxyGivesUpIsSaid(t *testing.T) {
	for proxy, wants := range map[string][]string{
		`null`: nil,
		`{url: "http://p.test:3128", by_name: true}`:                {"rules about addresses hold by the word of that proxy"},
		`{url: "socks5://p.test:1080"}`:                             {"connections go through socks5://p.test:1080"},
		`{url: "http://p.test:3128", user: me, password_file: p}`:   {"connections go through http://p.test:3128", "in clear"},
		`{url: "https://p.test:3128", user: me, password_file: p}`:  {"connections go through https://p.test:3128"},
		`{url: "http://p.test:3128", by_name: true, except: ["*"]}`: {"http://p.test:3128 resolves names"},
	} {
		f, err := file.Parse("egressd.yaml", []byte("version: 1\nupstream: {proxy: "+proxy+"}\n"))
		if err != nil {
			t.Fatal(err)
		}
		all := upstreamFindings(&config.Config{File: f})
		if len(all) != len(wants) {
			t.Errorf("%s: %v", proxy, all)
			continue
		}
		for i, want := range wants {
			if !strings.Contains(all[i].Says, want) || all[i].Fix != "" {
				t.Errorf("%s: %v, without %q", proxy, all[i], want)
			}
		}
	}
}
