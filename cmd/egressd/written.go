package main

// A written is what init tells a script.
type written struct {
	Path    string `json:"path"`
	Written bool   `json:"written"`
	Policy  string `json:"policy,omitempty"`
}
