package config

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestAdminListenersAreWhereTheirTokensSay, of whatever else is in the folder.
func TestAdminListenersAreWhereTheirTokensSay(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	if all := AdminListenersNow(); len(all) > 0 {
		t.Errorf("without a folder: %v", all)
	}
	dir, err := AdminTokens()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"127.0.0.1-9464.token", "::1-80.token", "127.0.0.1-9464.token.new", "127.0.0.1.token", "localhost-9464.token", "127.0.0.1-65536.token", "-1.token", ".token"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all := AdminListenersNow()
	slices.SortFunc(all, netip.AddrPort.Compare)
	if want := []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:9464"), netip.MustParseAddrPort("[::1]:80")}; !slices.Equal(all, want) {
		t.Errorf("%v, want %v", all, want)
	}
}
