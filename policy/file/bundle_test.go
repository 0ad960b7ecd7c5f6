package file

import (
	"strings"
	"testing"
)

func TestBundlesThatAreRefused(t *testing.T) {
	for entry, want := range map[string]string{
		"{bundle: \"https://h/b\", key: k}":                              "",
		"{bundle: \"http://h/b\", key: k, refresh: 1s, max_age: 1m}":     "",
		"{bundle: \"oci://h:5000/a/b:c\", key: k, ca: c, token_file: t}": "",
		"{bundle: b.tar.gz}":                              "",
		"{bundle: b.tar.gz, key: k}":                      "",
		"{bundle: \"${WHERE}\", ca: c}":                   "", // looked at when it is known
		"{bundle: \"https://h/b\"}":                       "is fetched and has no key",
		"{bundle: \"ftp://h/b\", key: k}":                 "cannot be fetched over \"ftp\"",
		"{bundle: \"file:///b\", key: k}":                 "is no URL",
		"{bundle: \"https:///b\", key: k}":                "is no URL",
		"{bundle: \"https://me:secret@h/b\", key: k}":     "has a password in its URL",
		"{bundle: \"https://h/b#x\", key: k}":             "has a # in its URL",
		"{bundle: \"http://h/b\", key: k, token_file: t}": "would be sent where everybody can read it",
		"{bundle: \"http://h/b\", key: k, ca: c}":         "ca is about https",
		"{bundle: \"https://h/b\", key: k, max_age: 1m}":  "make refresh shorter",
		"{bundle: b.tar.gz, ca: c}":                       "ca is about bundles that are fetched",
		"{bundle: b.tar.gz, token_file: c}":               "token_file is about bundles that are fetched",
		"{bundle: b.tar.gz, refresh: 5m}":                 "refresh is about bundles that are fetched",
		"{bundle: b.tar.gz, max_age: 5m}":                 "max_age is about bundles that are fetched",
	} {
		_, err := Parse("f", []byte("version: 1\nrego: ["+entry+"]\n"))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret")) {
			t.Errorf("%s: %v, want %q", entry, err, want)
		}
	}
}
