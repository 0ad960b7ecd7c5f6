package sniff

// Extension types, from the IANA registry "TLS ExtensionType Values".
const (
	extServerName           = 0
	extStatusRequest        = 5
	extSupportedGroups      = 10
	extPointFormats         = 11
	extSignatureAlgorithms  = 13
	extALPN                 = 16
	extSignedTimestamps     = 18
	extExtendedMasterSecret = 23
	extPreSharedKey         = 41
	extEarlyData            = 42
	extSupportedVersions    = 43
	extCookie               = 44
	extPSKModes             = 45
	extSignaturesCert       = 50
	extKeyShare             = 51
	extRenegotiation        = 0xff01
	extECH                  = 0xfe0d
	extECHDraftFirst        = 0xfe08
	extECHDraftLast         = 0xfe0c
	extESNI                 = 0xffce
)

// parseExtension reads the extensions that h keeps. It checks the others as far as crypto/tls does, so that
// both see a hello in the same bytes. Unknown extensions are skipped.
func (h *Hello) parseExtension(t uint16, r reader) (problem string) {
	switch t {
	case extServerName:
		return h.parseServerName(r)
	case extALPN:
		return h.parseALPN(r)
	case extSupportedVersions:
		return h.parseVersions(r)
	case extSignatureAlgorithms:
		return h.parseSignatures(r)
	case extEarlyData:
		h.EarlyData = true
		return unless(len(r) == 0, "bad early_data")
	case extECH:
		h.ECH = true
		return unless(isECH(r), "bad encrypted_client_hello")
	}
	if extECHDraftFirst <= t && t <= extECHDraftLast || t == extESNI {
		h.ECH = true
		return ""
	}
	return unless(wellFormed(t, r), "bad content of an extension")
}

func unless(ok bool, problem string) string {
	if ok {
		return ""
	}
	return problem
}

// parseServerName follows RFC 6066, section 3. Exactly one name: a list of
// several is a disagreement waiting between this parser and a server's. Where it finds a
// problem, h.ServerName is what the list claims.
func (h *Hello) parseServerName(r reader) (problem string) {
	if problem = h.parseOneName(r); problem != "" {
		h.ServerName = claimedNames(r)
	}
	return problem
}

func (h *Hello) parseOneName(r reader) (problem string) {
	list, ok := r.only16()
	if !ok {
		return "bad server_name"
	}
	if kind, ok := list.uint8(); !ok || kind != 0 {
		return "server_name is not a host name"
	}
	name, ok := list.vector16()
	switch {
	case !ok || len(name) == 0:
		return "bad server_name"
	case len(list) != 0:
		return "more than one server name"
	case !isPrintableName(name):
		return "server name is too long or not printable ASCII"
	case name[len(name)-1] == '.':
		return "server name ends in a dot"
	}
	h.ServerName, h.HasServerName = string(name), true
	return ""
}

// claimedNames returns what a list of server names holds, joined, for a record of a hello that
// is refused for it. It is as long as a record may have it.
func claimedNames(r reader) string {
	const most = 256
	list, _ := r.vector16()
	var names []byte
	for len(list) > 0 && len(names) < most {
		_, _ = list.uint8() // the kind
		name, ok := list.vector16()
		if !ok {
			break
		}
		if len(names) > 0 {
			names = append(names, ", "...)
		}
		names = append(names, name...)
	}
	return string(names[:min(len(names), most)])
}

func isPrintableName(name []byte) bool {
	for _, c := range name {
		if c <= ' ' || c >= 0x7f {
			return false
		}
	}
	return len(name) <= 255
}

func (h *Hello) parseALPN(r reader) (problem string) {
	const bad = "bad application_layer_protocol_negotiation"
	list, ok := r.only16()
	if !ok {
		return bad
	}
	n := 0
	for rest := list; len(rest) > 0; n++ {
		if name, ok := rest.vector8(); !ok || len(name) == 0 {
			return bad
		}
	}
	if n > listMost {
		return "too many protocols"
	}
	h.ALPN = make([]string, 0, n)
	for len(list) > 0 {
		name, _ := list.vector8()
		h.ALPN = append(h.ALPN, protocolName(name))
	}
	return ""
}

// protocolName spares an allocation for the names in nearly every hello.
func protocolName(b []byte) string {
	switch string(b) {
	case "h2":
		return "h2"
	case "http/1.1":
		return "http/1.1"
	}
	return string(b)
}

func (h *Hello) parseVersions(r reader) (problem string) {
	list, ok := r.only8()
	if !ok || len(list)%2 != 0 {
		return "bad supported_versions"
	}
	h.Version = 0
	for len(list) > 0 {
		v, _ := list.uint16()
		if !isGREASE(v) {
			h.Version = max(h.Version, v)
		}
	}
	return ""
}

func (h *Hello) parseSignatures(r reader) (problem string) {
	list, ok := r.only16()
	if !ok || len(list)%2 != 0 {
		return "bad signature_algorithms"
	}
	if len(list)/2 > listMost {
		return "too many signature algorithms"
	}
	h.signatures = list
	return ""
}

// isECH reports whether r is an ECHClientHello: an outer one, or the single
// byte by which an inner one is marked.
func isECH(r reader) bool {
	const inner = 1
	kind, ok := r.uint8()
	if !ok || kind > inner {
		return false
	}
	if kind == inner {
		return len(r) == 0
	}
	if _, ok := r.bytes(2 + 2 + 1); !ok { // KDF, AEAD, config id
		return false
	}
	if _, ok := r.vector16(); !ok { // encapsulated key: empty after a HelloRetryRequest
		return false
	}
	_, ok = r.only16()
	return ok
}

func wellFormed(t uint16, r reader) bool {
	switch t {
	case extStatusRequest:
		return isStatusRequest(r)
	case extSupportedGroups, extSignaturesCert:
		list, ok := r.only16()
		return ok && len(list)%2 == 0
	case extPointFormats:
		_, ok := r.only8()
		return ok
	case extRenegotiation, extPSKModes:
		_, ok := r.vector8()
		return ok && len(r) == 0
	case extCookie:
		_, ok := r.only16()
		return ok
	case extExtendedMasterSecret, extSignedTimestamps:
		return len(r) == 0
	case extKeyShare:
		return isKeyShare(r)
	case extPreSharedKey:
		return isPreSharedKey(r)
	}
	return true
}

func isStatusRequest(r reader) bool {
	_, hasType := r.uint8()
	_, hasResponders := r.vector16()
	_, hasExtensions := r.vector16()
	return hasType && hasResponders && hasExtensions && len(r) == 0
}

// isKeyShare allows an empty list: that asks for a HelloRetryRequest.
func isKeyShare(r reader) bool {
	list, ok := r.vector16()
	if !ok || len(r) != 0 {
		return false
	}
	for len(list) > 0 {
		_, hasGroup := list.uint16()
		key, hasKey := list.vector16()
		if !hasGroup || !hasKey || len(key) == 0 {
			return false
		}
	}
	return true
}

func isPreSharedKey(r reader) bool {
	identities, ok := r.vector16()
	if !ok || len(identities) == 0 {
		return false
	}
	for len(identities) > 0 {
		label, hasLabel := identities.vector16()
		_, hasAge := identities.bytes(4)
		if !hasLabel || !hasAge || len(label) == 0 {
			return false
		}
	}
	binders, ok := r.only16()
	if !ok {
		return false
	}
	for len(binders) > 0 {
		if binder, ok := binders.vector8(); !ok || len(binder) == 0 {
			return false
		}
	}
	return true
}

// isGREASE reports whether v is one of the values of RFC 8701: both bytes
// equal, their low half 0xa.
func isGREASE(v uint16) bool { return v&0x0f0f == 0x0a0a && v>>8 == v&0xff }
