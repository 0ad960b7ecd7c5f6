package policy

import (
	"errors"
	"strings"
	"testing"
)

func TestSpecialUseNames(t *testing.T) {
	rows := []struct {
		class AddressClass
		names string
	}{
		{"", "allowed.test a.allowed.test example.com www.example localhost.allowed.test localhost.test metadata.allowed.test internal.corp.test local.allowed.test notlocal.com x.xlocal svc.allowed.test application-dns.net xmetadata.goog arpa.test in-addr.arpa"},
		{AddrLoopback, "localhost x.localhost a.b.localhost ip6-localhost ip6-loopback localhost.localdomain localhost6.localdomain6"},
		{AddrMetadata, "metadata metadata.google.internal x.metadata.google.internal instance-data instance-data.ec2.internal metadata.goog api.metadata.cloud.ibm.com metadata.tencentyun.com metadata.azure.internal metadata.platformequinix.com"},
		{AddrLocalName, "a.internal host.docker.internal gateway.docker.internal host.containers.internal google.internal printer.local api.cluster.local kubernetes.default.svc x.svc router.home.arpa home.arpa x.onion x.alt x.invalid x.localdomain nas.lan"},
		{AddrLocalName, "intranet kubernetes com svc internal db1 use-application-dns.net ipv4only.arpa _dns.resolver.arpa"},
	}
	for _, row := range rows {
		for _, name := range strings.Fields(row.names) {
			if class := classOfName(name); class != row.class {
				t.Errorf("%s has class %q, not %q", name, class, row.class)
			}
		}
	}
}

func TestEverySpecialNameIsCanonical(t *testing.T) {
	for name := range specialNames {
		if canonical, err := ParseName(name); err != nil || canonical != name {
			t.Errorf("%s: nothing can equal it: %v", name, err)
		}
	}
}

func TestAnALabelIsTheOnlySpellingOfItsULabel(t *testing.T) {
	for _, name := range []string{
		"xn--bcher-kva.test", "XN--Bcher-KVA.test", "a.xn--55qx5d", "xn--mgba3gch31f060k.test", "xn--fa-hia.test", "xn--strae-oqa.test",
	} {
		if _, err := ParseName(name); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{
		"xn--.test", "xn--zz.test", "xn--foo-.test", "xn--a.test", "xn--0.test", "xn--a-ecp.test", "xn--bcher-kva8.test", "xn--a_b-x.test", "xn--BCHER-KVA-.test",
	} {
		if got, err := ParseName(name); err == nil {
			t.Errorf("%s became %s", name, got)
		}
	}
}

func TestAUnicodePatternIsToldItsALabels(t *testing.T) {
	for text, hint := range map[string]string{
		"b\u00fccher.test":         "xn--bcher-kva.test",
		"*.B\u00fccher.test:8443":  "*.xn--bcher-kva.test:8443",
		"evil\u3002test":           "evil.test",
		"\u2460\u2461\u2466.0.0.1": "127.0.0.1",
		"\u200b.test":              "",
	} {
		_, err := ParsePattern(text)
		var e *PatternError
		if !errors.As(err, &e) || e.Hint != hint {
			t.Errorf("%q: %v", text, err)
		}
	}
}
