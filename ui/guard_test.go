package ui

import (
	"net/http"
	"strings"
	"testing"
)

// TestWhoMayLook tries what another page, another program and a thief would send.
func TestWhoMayLook(t *testing.T) {
	p := opened(t, Options{Dir: logOf(t)})
	own := "http://" + p.guard.host
	_, port, _ := strings.Cut(p.guard.host, ":")
	for says, row := range map[string]struct {
		method, target string
		change         map[string]string
		want           int
	}{
		"the page itself":                         {"GET", "/", nil, 200},
		"an address that was typed":               {"GET", "/", map[string]string{"Sec-Fetch-Site": "none"}, 200},
		"curl with the cookie":                    {"GET", "/v1/health", map[string]string{"Sec-Fetch-Site": "", "Sec-Fetch-Mode": "", "Sec-Fetch-Dest": ""}, 200},
		"the address instead of the name":         {"GET", "/", map[string]string{"Host": p.address}, 421},
		"localhost":                               {"GET", "/", map[string]string{"Host": "localhost:" + port}, 421},
		"a name that is rebound":                  {"GET", "/", map[string]string{"Host": "rebound.evil.test:" + port}, 421},
		"the name in another case":                {"GET", "/", map[string]string{"Host": strings.ToUpper(p.guard.host)}, 421},
		"no cookie":                               {"GET", "/", map[string]string{"Cookie": ""}, 403},
		"another cookie":                          {"GET", "/", map[string]string{"Cookie": cookieName + "=x"}, 403},
		"an empty cookie":                         {"GET", "/", map[string]string{"Cookie": cookieName + "="}, 403},
		"two cookies":                             {"GET", "/", map[string]string{"Cookie": p.cookie + "; " + cookieName + "=x"}, 403},
		"the cookie under a plain name":           {"GET", "/", map[string]string{"Cookie": strings.TrimPrefix(p.cookie, "__Host-")}, 403},
		"a link on another site":                  {"GET", "/", map[string]string{"Sec-Fetch-Site": "cross-site"}, 403},
		"a page at another port of the same host": {"GET", "/", map[string]string{"Sec-Fetch-Site": "same-site"}, 403},
		"a script of another origin":              {"GET", "/v1/records", map[string]string{"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.test"}, 403},
		"another origin alone":                    {"GET", "/v1/records", map[string]string{"Sec-Fetch-Site": "", "Origin": "https://evil.test"}, 403},
		"an opaque origin":                        {"GET", "/v1/records", map[string]string{"Origin": "null"}, 403},
		"a form with its token":                   {"POST", "/health/verify", map[string]string{"body": "csrf=" + p.guard.csrf}, 303},
		"a form without a token":                  {"POST", "/health/verify", nil, 403},
		"a form with another token":               {"POST", "/health/verify", map[string]string{"body": "csrf=x"}, 403},
		"the token in the address":                {"POST", "/health/verify?csrf=" + p.guard.csrf, nil, 403},
		"a form of another site":                  {"POST", "/health/verify", map[string]string{"body": "csrf=" + p.guard.csrf, "Sec-Fetch-Site": "cross-site", "Origin": "https://evil.test"}, 403},
		"a form without origin":                   {"POST", "/health/verify", map[string]string{"body": "csrf=" + p.guard.csrf, "Sec-Fetch-Site": "", "Origin": ""}, 403},
		"a form that was typed":                   {"POST", "/health/verify", map[string]string{"body": "csrf=" + p.guard.csrf, "Sec-Fetch-Site": "none"}, 403},
		"a change by GET":                         {"GET", "/health/verify", nil, 404},
		"the link, again":                         {"GET", linkPath + "anything", nil, 403},
		"no such view":                            {"GET", "/nothing", nil, 404},
		"an old browser with its origin":          {"POST", "/health/verify", map[string]string{"body": "csrf=" + p.guard.csrf, "Sec-Fetch-Site": "", "Origin": own}, 303},
	} {
		answer, text := p.ask(row.method, row.target, row.change)
		if answer.StatusCode != row.want {
			t.Errorf("%s: %d, want %d", says, answer.StatusCode, row.want)
		}
		if row.want != 200 && strings.Contains(text, "evil.test") {
			t.Errorf("%s: it shows the log", says)
		}
	}
}

// TestTheLinkWorksOnce opens the page as a browser does that follows the link from a file.
func TestTheLinkWorksOnce(t *testing.T) {
	p := serve(t, Options{Dir: logOf(t)})
	link := strings.TrimPrefix(p.Link(), "http://"+p.guard.host)
	from := map[string]string{"Sec-Fetch-Site": "cross-site"}
	if answer, _ := p.ask("GET", linkPath+"wrong", from); answer.StatusCode != 403 {
		t.Errorf("a wrong link: %s", answer.Status)
	}
	if answer, _ := p.ask("GET", link, map[string]string{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}); answer.StatusCode != 403 {
		t.Errorf("the link as an image of another page: %s", answer.Status)
	}
	answer, _ := p.ask("GET", link, from)
	if answer.StatusCode != 200 || len(answer.Cookies()) != 1 {
		t.Fatalf("%s, %v", answer.Status, answer.Cookies())
	}
	c := answer.Cookies()[0]
	if c.Name != "__Host-egressd" || !c.Secure || !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Path != "/" || c.Domain != "" || len(c.Value) < 40 {
		t.Errorf("the cookie is %v", c)
	}
	if again, _ := p.ask("GET", link, from); again.StatusCode != 403 || len(again.Cookies()) != 0 {
		t.Errorf("the link again: %s", again.Status)
	}
	p.cookie = c.Name + "=" + c.Value
	if answer, _ := p.ask("GET", "/", nil); answer.StatusCode != 200 {
		t.Errorf("with the cookie: %s", answer.Status)
	}
	other := serve(t, Options{Dir: logOf(t)})
	other.cookie = p.cookie
	if answer, _ := other.ask("GET", "/", nil); answer.StatusCode != 403 {
		t.Errorf("the cookie of another start: %s", answer.Status)
	}
}

// TestEveryAnswerIsProtected looks at the headers, also of refusals.
func TestEveryAnswerIsProtected(t *testing.T) {
	p := opened(t, Options{Dir: logOf(t)})
	for _, target := range []string{"/", "/nothing", "/v1/health", "/v1/nothing", linkPath + "x"} {
		answer, _ := p.ask("GET", target, nil)
		policy := answer.Header.Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'none'", "frame-ancestors 'none'", "require-trusted-types-for 'script'", "trusted-types 'none'", "base-uri 'none'", "form-action 'self'", "'" + p.scriptHash + "'"} {
			if !strings.Contains(policy, want) {
				t.Errorf("%s: no %s in %q", target, want, policy)
			}
		}
		if strings.Contains(policy, "unsafe") {
			t.Errorf("%s: %q", target, policy)
		}
		for name, want := range map[string]string{"X-Frame-Options": "DENY", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin", "Cache-Control": "no-store", "Cross-Origin-Resource-Policy": "same-origin", "Cross-Origin-Opener-Policy": "same-origin"} {
			if got := answer.Header.Get(name); got != want {
				t.Errorf("%s: %s is %q", target, name, got)
			}
		}
	}
}

// TestStreamsAreFew opens more event streams than there may be; none is read.
func TestStreamsAreFew(t *testing.T) {
	p := opened(t, Options{Dir: logOf(t)})
	var streams []*http.Response
	defer func() {
		for _, s := range streams {
			s.Body.Close()
		}
	}()
	refused := 0
	for range streamsMost + 5 {
		r, _ := http.NewRequest("GET", "http://"+p.address+eventsPath, nil)
		r.Host = p.guard.host
		r.Header.Set("Cookie", p.cookie)
		answer, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		streams = append(streams, answer)
		if answer.StatusCode == 503 {
			refused++
		}
	}
	if refused != 5 {
		t.Errorf("%d streams were refused", refused)
	}
	if answer, _ := p.ask("GET", "/", nil); answer.StatusCode != 200 {
		t.Errorf("a view beside them: %s", answer.Status)
	}
}
