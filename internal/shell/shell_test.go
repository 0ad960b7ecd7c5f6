package shell

import "testing"

func TestQuoteMakesOneWord(t *testing.T) {
	for in, want := range map[string]string{
		"":               "''",
		"plain":          "'plain'",
		"a b $(id) `id`": "'a b $(id) `id`'",
		"it's":           `'it'\''s'`,
	} {
		if got := Quote(in); got != want {
			t.Errorf("Quote(%q) = %s, want %s", in, got, want)
		}
	}
}
