package policy

import "strings"

// A SetField is a header field that egressd writes.
type SetField struct{ Name, Value string }

// SetFields are the header fields that every request for d has, by the rules that name its host. Fields of the sandbox with
// these names do not go up, and the policy has to be asked about the request as it goes up. The caller changes nothing of the
// result.
func (p *Policy) SetFields(d Destination) []SetField {
	if p == nil {
		return nil
	}
	for _, r := range p.setting {
		if (Injection{Pattern: r.Pattern}).Covers(d) {
			return r.Set
		}
	}
	return nil
}

// Replaces reports whether a field of a sandbox gives way to f. Servers may take "_" in a name for "-".
func (f SetField) Replaces(name string) bool {
	return strings.EqualFold(strings.ReplaceAll(f.Name, "_", "-"), strings.ReplaceAll(name, "_", "-"))
}

// setText is one line for each field.
func setText(set []SetField) string {
	if len(set) == 0 {
		return ""
	}
	var b strings.Builder
	for _, f := range set {
		b.WriteString(f.Name + ": " + f.Value + "\n")
	}
	return b.String()
}

// asWritten returns the HTTP part of r, which is not nil, with the fields that p sets.
func (p *Policy) asWritten(r *Request) *HTTPRequest {
	set := p.SetFields(r.Destination)
	if len(set) == 0 {
		return r.HTTP
	}
	h := *r.HTTP
	h.Header = map[string][]string{}
	for name, values := range r.HTTP.Header {
		kept := true
		for _, f := range set {
			kept = kept && !f.Replaces(name)
		}
		if kept {
			h.Header[name] = values
		}
	}
	for _, f := range set {
		h.Header[strings.ToLower(f.Name)] = []string{f.Value}
	}
	return &h
}

// written returns r as it goes up.
func (p *Policy) written(r *Request) *Request {
	if r.HTTP == nil || len(p.SetFields(r.Destination)) == 0 {
		return r
	}
	out := *r
	out.HTTP = p.asWritten(r)
	return &out
}
