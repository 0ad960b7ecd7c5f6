package http1

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseTarget(t *testing.T) {
	for _, row := range []struct {
		method, target string
		want           Target
		uri            string
	}{
		{"GET", "/", Target{Origin, "", "/", "", false, ""}, "/"},
		{"GET", "/a/b?c=d&e?f", Target{Origin, "", "/a/b", "c=d&e?f", true, ""}, "/a/b?c=d&e?f"},
		{"GET", "/a?", Target{Origin, "", "/a", "", true, ""}, "/a?"},
		{"GET", "/a//b", Target{Origin, "", "/a//b", "", false, ""}, "/a//b"},
		{"GET", "http://Allowed.test", Target{Absolute, "Allowed.test", "/", "", false, ""}, "/"},
		{"GET", "HTTP://allowed.test:80/x", Target{Absolute, "allowed.test:80", "/x", "", false, ""}, "/x"},
		{"GET", "http://allowed.test?x=1", Target{Absolute, "allowed.test", "/", "x=1", true, ""}, "/?x=1"},
		{"GET", "http://[2606:4700::1111]:80/", Target{Absolute, "[2606:4700::1111]:80", "/", "", false, ""}, "/"},
		{"GET", "http://2130706433/", Target{Absolute, "2130706433", "/", "", false, ""}, "/"}, // ParseDestination's to refuse
		{"GET", "/%41?%", Target{Origin, "", "/%41", "%", true, ""}, "/%41?%"},
		{"GET", "/日本?q=ü", Target{Origin, "", "/%E6%97%A5%E6%9C%AC", "q=%C3%BC", true, ""}, "/%E6%97%A5%E6%9C%AC?q=%C3%BC"},
		{"GET", "http://user:p%40ss@allowed.test/", Target{Absolute, "allowed.test", "/", "", false, "Basic dXNlcjpwQHNz"}, "/"},
		{"GET", "http://user@allowed.test:80/", Target{Absolute, "allowed.test:80", "/", "", false, "Basic dXNlcjo="}, "/"},
		{"GET", "http://allowed.test:80@evil.test/", Target{Absolute, "evil.test", "/", "", false, "Basic YWxsb3dlZC50ZXN0Ojgw"}, "/"},
		{"CONNECT", "allowed.test:443", Target{Authority, "allowed.test:443", "", "", false, ""}, ""},
		{"CONNECT", "[::1]:443", Target{Authority, "[::1]:443", "", "", false, ""}, ""},
		{"CONNECT", "_dmarc.allowed.test:0443", Target{Authority, "_dmarc.allowed.test:0443", "", "", false, ""}, ""},
		{"OPTIONS", "*", Target{Asterisk, "", "*", "", false, ""}, "*"},
		{"OPTIONS", "/x", Target{Origin, "", "/x", "", false, ""}, "/x"},
	} {
		got, err := ParseTarget(row.method, row.target)
		if diff := cmp.Diff(row.want, got); err != nil || diff != "" || got.RequestURI() != row.uri {
			t.Errorf("%s %s: %v, %q %s", row.method, row.target, err, got.RequestURI(), diff)
		}
	}
}

func TestMalformedTargets(t *testing.T) {
	for _, row := range []struct {
		method, target string
		host           bool
	}{
		{"GET", "", false},
		{"GET", "a b", false},
		{"GET", "/\x00", false},
		{"GET", "/\xe9", false},
		{"GET", "allowed.test", false},
		{"GET", "allowed.test/", false},
		{"GET", "*", false},
		{"GET", "?x", false},
		{"GET", "//evil.test/", false},
		{"GET", "http://allowed.test//x", false},
		{"GET", "/a#b", false},
		{"GET", "http://allowed.test/#", false},
		{"GET", "http://allowed.test#@evil.test/", false},
		{"GET", "/%", false},
		{"GET", "/%4", false},
		{"GET", "/%zz", false},
		{"GET", "/%41%4", false},
		{"GET", "http:evil.test/", true},
		{"GET", "http:/evil.test/", true},
		{"GET", "http:///evil.test", true},
		{"GET", "http://", true},
		{"GET", "http://:8080/", true},
		{"GET", "http://allowed.test:/", true},
		{"GET", "http://allowed.test:80:80/", true},
		{"GET", "http://allowed.test:+80/", true},
		{"GET", "http://@allowed.test/", true},
		{"GET", "http://user@evil.test@allowed.test/", true},
		{"GET", "http://us%3Aer:secret@allowed.test/", true},
		{"GET", "http://us%0Aer:secret@allowed.test/", true},
		{"GET", "http://us%4:secret@allowed.test/", true},
		{"GET", "http://ällowed.test/", true},
		{"GET", "http://allowed.test%2eevil.test/", true},
		{"GET", "http://%65vil.test/", true},
		{"GET", `http://allowed.test\.evil.test/`, true},
		{"GET", `http://evil.test\@allowed.test/`, true},
		{"GET", "http://evil.test;allowed.test/", true},
		{"GET", "http://allowed.test,evil.test/", true},
		{"GET", "http://a!b.allowed.test/", true},
		{"GET", "http://[evil.test]/", true},
		{"GET", "http://[::1", true},
		{"GET", "http://[::1]x/", true},
		{"GET", "http://[::1]x80/", true},
		{"GET", "http://x[::1]/", true},
		{"GET", "http://[::1%25lo]:8080/", true},
		{"GET", "http://[127.0.0.1]/", true},
		{"GET", "http://[]/", true},
		{"CONNECT", "http://allowed.test:443/", true},
		{"CONNECT", "/x", true},
		{"CONNECT", "*", true},
		{"CONNECT", "allowed.test", true},
		{"CONNECT", "allowed.test:", true},
		{"CONNECT", ":443", true},
		{"CONNECT", "allowed.test:443?x", true},
		{"CONNECT", "allowed.test:443/", true},
		{"CONNECT", "allowed.test:443#", true},
		{"CONNECT", "user@allowed.test:443", true},
		{"CONNECT", "allowed.test:https", true},
		{"CONNECT", "allowed.test:-1", true},
		{"CONNECT", "allowed.test:0x1bb", true},
		{"CONNECT", "::1:443", true},
		{"CONNECT", "[::ffff:151.101.1.69%25x.allowed.test]:443", true},
		{"CONNECT", "[fe80::1%eth0]:80", true},
		{"CONNECT", "[allowed.test]:443", true},
		{"connect", "allowed.test:443", false},
		{"GET", "mailto:x", false},
		{"GET", "1http://a/", false},
		{"GET", "allowed.test:443", false},
	} {
		_, err := ParseTarget(row.method, row.target)
		var bad *MalformedError
		if !errors.As(err, &bad) || bad.Status != 400 || bad.Host != row.host {
			t.Errorf("%s %s: %#v", row.method, row.target, err)
		}
	}
}

func TestOtherSchemes(t *testing.T) {
	for target, want := range map[string]string{
		"https://allowed.test/": "https", "FTP://a/": "ftp", "file:///etc/passwd": "file", "gopher://a": "gopher",
		"ws://allowed.test/": "ws", "unix:/": "unix", "httpx://a/": "httpx", "a.b+c-1:/": "a.b+c-1",
	} {
		_, err := ParseTarget("GET", target)
		var scheme *SchemeError
		if !errors.As(err, &scheme) || scheme.Scheme != want {
			t.Errorf("%s: %v", target, err)
		}
	}
}
