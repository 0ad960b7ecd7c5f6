package config

import "testing"

func TestMapsEveryone(t *testing.T) {
	for text, want := range map[string]bool{
		"         0          0 4294967295\n": true, "0 1000 1\n": false, "0 0 65536\n": false, "": false,
		"0 0 4294967295\n1 1 1\n": false, "1 0 4294967295\n": false,
	} {
		if mapsEveryone(text) != want {
			t.Errorf("%q: %v", text, !want)
		}
	}
}
