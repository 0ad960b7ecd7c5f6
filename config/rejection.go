package config

import "time"

// A Rejection is the last change of the policy that was not put in force, as commands and the
// operator's listener say it.
type Rejection struct {
	Time    time.Time `json:"time"`
	Reason  string    `json:"reason"`
	Current bool      `json:"current"` // nothing was put in force since
}
