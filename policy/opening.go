package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// An Opening is what one line of a list allow opens: destinations, and of the requests to them all, or those of one
// method and path. It is comparable.
type Opening struct {
	Pattern Pattern
	Method  string // empty: any
	Path    string // a [PathPattern]; empty: any
}

// OpeningsOf returns the openings of all requests to each pattern.
func OpeningsOf(patterns []Pattern) []Opening {
	all := make([]Opening, len(patterns))
	for i, p := range patterns {
		all[i].Pattern = p
	}
	return all
}

// NamesOne reports whether a rule can name the requests of one method and one path, and no others.
func NamesOne(method, path string) bool {
	return method != "" && path != "" && !strings.Contains(path, "*") && Opening{Method: method, Path: path}.checkRequest() == nil
}

// Check returns an error if no command may add o: see [CheckGrant], and how methods and paths are written.
func (o Opening) Check() error {
	if err := CheckGrant(o.Pattern); err != nil {
		return err
	}
	return o.checkRequest()
}

func (o Opening) checkRequest() error {
	if o.Method != "" && (!PlainMethod(o.Method) || !CanonicalMethod(o.Method)) {
		return fmt.Errorf("method %q is not one to write in a rule; write GET", o.Method)
	}
	if o.Path == "" {
		return nil
	}
	if strings.Contains(o.Path, "$") { // a policy file reads variables after it
		return fmt.Errorf("path %q has a $; write the rule into the policy file", o.Path)
	}
	_, err := ParsePathPattern(o.Path)
	return err
}

// Conditional reports whether o is about some requests alone.
func (o Opening) Conditional() bool { return o.Method != "" || o.Path != "" }

// String returns "example.com:80", or "GET /a of example.com:80".
func (o Opening) String() string {
	if !o.Conditional() {
		return o.Pattern.String()
	}
	return strings.TrimSpace(cmp.Or(o.Method, "any method")+" "+o.Path) + " of " + o.Pattern.String()
}

// Line returns the rule that opens o. o has passed [Opening.Check].
func (o Opening) Line(id string) Rule {
	r := Rule{ID: id, Pattern: o.Pattern}
	if o.Method != "" {
		r.Methods = []string{o.Method}
	}
	if path, err := ParsePathPattern(o.Path); err == nil {
		r.Paths = []PathPattern{path}
	}
	return r
}

// IsLine reports whether r is a line for just o.
func (o Opening) IsLine(r Rule) bool {
	line := o.Line("")
	return r.Pattern == o.Pattern && !r.PathsFold && !r.ReadsFurther() && r.MaxBytesUp == 0 && len(r.Set) == 0 && slices.Equal(r.Methods, line.Methods) &&
		slices.EqualFunc(r.Paths, line.Paths, func(a, b PathPattern) bool { return a.text == b.text })
}

// Sample is a request to dst that o opens: a tunnel if o is about all requests.
func (o Opening) Sample(dst Destination, who Sandbox) Request {
	r := Request{Sandbox: who, Via: ViaConnect, Destination: dst, Usage: new(Usage)}
	if !o.Conditional() {
		return r
	}
	r.HTTP = &HTTPRequest{Method: cmp.Or(o.Method, "GET"), Path: cmp.Or(strings.NewReplacer("**", "x", "*", "x").Replace(o.Path), "/")}
	if dst.Port != 443 {
		r.Via = ViaHTTP
	}
	return r
}
