package file

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestExpand(t *testing.T) {
	f, err := Parse("f", readSample(t))
	if err != nil {
		t.Fatal(err)
	}
	variables := map[string]string{"HOME": "/home/${X}", "XDG_RUNTIME_DIR": "/run/user/7"}
	out, err := f.Expand(func(name string) (string, bool) { v, ok := variables[name]; return v, ok })
	if err != nil {
		t.Fatal(err)
	}
	got := []string{out.Listen.Admin, out.Listen.Proxy[0], out.Listen.Proxy[1], out.TLS.CADir, out.Audit.Dir, out.Sandboxes[1].Listen, out.Injections()[0].Inject.File, out.Rego[1].Path, out.Sandboxes[1].Rego[0].Path, out.Sandboxes[1].Project}
	want := []string{"unix:/run/user/7/egressd/admin.sock", "127.0.0.1:3128", "unix:/run/user/7/egressd/proxy.sock", "/home/${X}/ca", "/home/${X}/log", "unix:/run/egressd/web.sock", "/home/${X}/example.key", "/home/${X}/more.rego", "/home/${X}/web.rego", "/home/${X}/tree"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	kept := f.Injections()[0].Inject.File == "${HOME}/example.key" && f.Listen.Admin == "unix:${XDG_RUNTIME_DIR}/egressd/admin.sock"
	if !kept || f.Listen.Proxy[1] == out.Listen.Proxy[1] {
		t.Error("the file itself was changed")
	}
}

// TestAnExpandedSinkIsACopy leaves the file itself as it was read.
func TestAnExpandedSinkIsACopy(t *testing.T) {
	f, err := Parse("f", []byte(`version: 1
audit: {sinks: [{name: s, type: syslog, address: "tls:s.test:6514", ca_file: "${HOME}/ca.pem"}]}
`))
	if err != nil {
		t.Fatal(err)
	}
	out, err := f.Expand(func(string) (string, bool) { return "/home/u", true })
	if err != nil {
		t.Fatal(err)
	}
	if now, was := out.Audit.Sinks[0].CAFile, f.Audit.Sinks[0].CAFile; now != "/home/u/ca.pem" || was != "${HOME}/ca.pem" {
		t.Errorf("expanded to %q, and the file itself says %q", now, was)
	}
}

func TestAVariableThatIsNotSetIsAnError(t *testing.T) {
	f, err := Parse("f", readSample(t))
	if err != nil {
		t.Fatal(err)
	}
	out, err := f.Expand(func(name string) (string, bool) { return "", name == "HOME" })
	want := "f:43:14: audit.dir: the variable HOME is not set; set it, or write the path out"
	if out != nil || err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
}

// TestAVariableThatIsNotSetFailsOnlyWhatListens leaves out listeners, and names their places.
func TestAVariableThatIsNotSetFailsOnlyWhatListens(t *testing.T) {
	f, err := Parse("f", []byte(`version: 1
listen: {proxy: ["127.0.0.1:3128", "unix:${A}/proxy.sock"], enter: ["unix:${A}/enter.sock"], admin: "unix:${A}/admin.sock"}
`))
	if err != nil {
		t.Fatal(err)
	}
	out, err := f.Expand(func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Listen{Proxy: []string{"127.0.0.1:3128"}, Enter: []string{}}, out.Listen); diff != "" {
		t.Error(diff)
	}
	want := "f:2:101: listen.admin: the variable A is not set; set it, or write the path out"
	if got := out.Unset("listen.admin").Error(); got != want || len(out.Unset()) != 3 {
		t.Errorf("%s, of %v", got, out.Unset())
	}
	if out, err = f.Expand(func(string) (string, bool) { return "/run", true }); err != nil || len(out.Unset()) > 0 {
		t.Errorf("%v %v", out.Unset(), err)
	}
}
