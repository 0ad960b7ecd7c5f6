package sandbox

import (
	"slices"
	"strings"
	"testing"
)

func TestSecretsInArgumentsAreLeftOut(t *testing.T) {
	for _, row := range []struct{ given, kept string }{
		{"npm|ci", "npm|ci"},
		{"python3|-u|train.py|--epochs=3", "python3|-u|train.py|--epochs=3"},
		{"curl|-u|me:hunter2|https://a.test/", "curl|-u|...|https://a.test/"},
		{"curl|-ume:hunter2", "curl|-u..."},
		{"curl|-H|Authorization: Bearer x|-d|a=b|-d|@file", "curl|-H|...|-d|...|-d|@file"},
		{"curl|--header|X: y|--user|me|--data|body", "curl|--header|...|--user|...|--data|..."},
		{"curl|https://me:hunter2@a.test:8443/p?q=secret#f", "curl|https://a.test:8443/p?..."},
		{"curl|https://a.test/p@q", "curl|https://a.test/p@q"},
		{"git|clone|https://x-access-token:ghp_1@a.test", "git|clone|https://a.test"},
		{"tool|--url=https://me:pw@a.test/?k=v", "tool|--url=https://a.test/?..."},
		{"tool|--token=abc|--api-key|def|PASSWORD=x", "tool|--token=...|--api-key|...|PASSWORD=..."},
		{"tool|ghp_abc|sk-abc|eyJhbGciOi", "tool|...|...|..."},
		{"sh|-c|PASS=x curl -u me:pw a.test", "sh|-c|PASS=..."},
		{"sh|-c|curl -u me:pw a.test", "sh|-c|curl..."},
		{"sh|-c|exit", "sh|-c|exit"},
		{"tool|cookie:abc", "tool|cookie:..."},
		{"tool|a\nb|c", "tool|a...|c"},
		{"npm install x", "npm..."},
		{"", ""},
	} {
		text := strings.ReplaceAll(row.given, "|", "\x00") + "\x00"
		got := plainArguments([]byte(text))
		if !slices.Equal(got, strings.Split(row.kept, "|")) {
			t.Errorf("%q: kept %q, want %q", row.given, got, row.kept)
		}
	}
	if got := plainArguments([]byte(strings.Repeat("x\x00", 100))); len(got) != argumentsMost {
		t.Errorf("kept %d arguments", len(got))
	}
}
