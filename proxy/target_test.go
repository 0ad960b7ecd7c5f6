package proxy

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// TestUserinfoBecomesAuthorization, and stands in no record.
func TestUserinfoBecomesAuthorization(t *testing.T) {
	w, o := newWorld(t, openPolicy, nil), newWitness(t, "HTTP/1.1 204 No Content\r\n\r\n")
	c := w.dial(t).send("GET http://user:s%65cret@allowed.test:" + o.port + "/x HTTP/1.1\r\nHost: allowed.test\r\n\r\n").expect("HTTP/1.1 204 No Content\r\n\r\n")
	if want := "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte("user:secret")) + "\r\n"; !strings.Contains(o.got(), want) || strings.Contains(o.got(), "@") {
		t.Errorf("the upstream got %q", o.got())
	}
	c.Close()
	w.closed(t, "s%65cret", "secret", "user:")
}

// TestRefusalsOfRequestsSayWhatWasWrong in the reply and in the record, without what the client sent.
func TestRefusalsOfRequestsSayWhatWasWrong(t *testing.T) {
	for line, want := range map[string]string{
		"GET http://user:hunter2@allowed.test/ HTTP/1.1\r\nHost: allowed.test\r\nAuthorization: Basic eDp5": "beside an Authorization field",
		"GET http://us er@allowed.test/ HTTP/1.1\r\nHost: allowed.test":                                     "%20",
		"GET http://allowed.test/a b HTTP/1.1\r\nHost: allowed.test":                                        "%20",
		"GET http://allowed.test/\xe9 HTTP/1.1\r\nHost: allowed.test":                                       "UTF-8",
		"GET http://ällowed.test/ HTTP/1.1\r\nHost: allowed.test":                                           "xn--",
		"GET http://allowed.test/#x HTTP/1.1\r\nHost: allowed.test":                                         "fragment",
		"GET http://allowed.test/ HTTP/1.1\r\nHost: allowed.test\r\nX : y":                                  "token",
		"GET http://allowed.test/":                                      "HTTP version",
		"GET http://allowed.test:99999/ HTTP/1.1\r\nHost: allowed.test": "port",
	} {
		w := newWorld(t, openPolicy, nil)
		got := w.dial(t).send(line + "\r\n\r\n").rest()
		if !strings.HasPrefix(got, "HTTP/1.1 400 ") || !strings.Contains(got, `"reason":"`) || !strings.Contains(got, want) || strings.Contains(got, "hunter2") {
			t.Errorf("%q: %s", line, got)
		}
		r := w.recorded(t, func(r record.Record) bool { return r.Kind == record.KindRefused })
		if !strings.Contains(r.Decision.Reason, want) {
			t.Errorf("%q: recorded %q", line, r.Decision.Reason)
		}
	}
}

// TestUTF8InAPathIsDecidedAsItIsWritten, percent-encoded.
func TestUTF8InAPathIsDecidedAsItIsWritten(t *testing.T) {
	o := newWitness(t, "HTTP/1.1 204 No Content\r\n\r\n")
	w := newWorld(t, "version: 1\nallow: [{host: \"allowed.test:"+o.port+"\", paths: [\"/%E6%97%A5%E6%9C%AC/**\"]}]\nunsafe_allow: [\"127.0.0.1:*\"]\n", nil)
	c := w.dial(t).send(get("allowed.test", o.port, "/日本/ä?q=ü")).expect("HTTP/1.1 204 No Content\r\n\r\n")
	if want := "GET /%E6%97%A5%E6%9C%AC/%C3%A4?q=%C3%BC HTTP/1.1\r\n"; !strings.HasPrefix(o.got(), want) {
		t.Errorf("the upstream got %q", o.got())
	}
	if r := w.recorded(t, func(r record.Record) bool { return r.Kind == record.KindRequest }); r.HTTP.Path != "/%E6%97%A5%E6%9C%AC/%C3%A4" {
		t.Errorf("recorded %q", r.HTTP.Path)
	}
	if resp, _ := c.send(get("allowed.test", o.port, "/本日/")).response("GET"); resp.StatusCode != 403 {
		t.Errorf("another path: %d", resp.StatusCode)
	}
	c.Close()
	w.closed(t)
}

// TestADestinationThatIsAProxyIsNamedSo in each form in which clients ask one.
func TestADestinationThatIsAProxyIsNamedSo(t *testing.T) {
	w := newInspectWorld(t, inspectPolicy, nil)
	eachRawWay(t, w, answers(nil), func(t *testing.T, dial func() rawWay) {
		if strings.HasSuffix(t.Name(), "in_clear") {
			return
		}
		for _, line := range []string{"GET http://other.test/ HTTP/1.1\r\nHost: other.test", "CONNECT other.test:443 HTTP/1.1\r\nHost: other.test:443"} {
			c := dial()
			resp, body := c.send(line + "\r\n\r\n").response("GET")
			if resp.StatusCode < 400 || resp.StatusCode > 421 || !strings.Contains(body, "upstream.proxy") {
				t.Errorf("%q: %d %s", line, resp.StatusCode, body)
			}
			c.Close()
		}
	})
	w.recorded(t, func(r record.Record) bool {
		return r.Decision != nil && r.Decision.Class == string(policy.MalformedRequest) && strings.Contains(r.Decision.Reason, "upstream.proxy")
	})
	w.settled(t)
}
