package spelling

import "testing"

func TestDistance(t *testing.T) {
	for _, row := range []struct {
		a, b string
		want int
	}{
		{"", "", 0},
		{"", "deny", 4},
		{"deny", "deny", 0},
		{"deny", "dney", 1},
		{"deny", "den", 1},
		{"deny", "denys", 1},
		{"deny", "dexy", 1},
		{"allow", "alow", 1},
		{"allow", "lalwo", 2},
		{"ab", "bca", 3},
		{"deny", "Deny", 1},
		{"allow", "block", 4},
	} {
		if got := Distance(row.a, row.b); got != row.want {
			t.Errorf("from %q to %q: %d, want %d", row.a, row.b, got, row.want)
		}
		if got := Distance(row.b, row.a); got != row.want {
			t.Errorf("from %q to %q: %d, want %d", row.b, row.a, got, row.want)
		}
	}
}

func TestNearest(t *testing.T) {
	candidates := []string{"host", "verdict", "sandbox", "since", "method"}
	for in, want := range map[string]string{
		"hots": "host", "Host": "host", "verdit": "verdict", "sandobx": "sandbox", "sinc": "since",
		"x": "", "frobnicate": "",
	} {
		if got := Nearest(in, candidates); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", in, got, want)
		}
	}
}
