package cli

// A Written is what init tells a script.
type Written struct {
	Path    string `json:"path"`
	Written bool   `json:"written"`
	Policy  string `json:"policy,omitempty"`
}
