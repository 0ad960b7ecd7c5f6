package policy

// InquiryHost is the host at which egressd itself answers the programs in a sandbox, over plain HTTP at port 80: what they
// may reach, why they were denied, and how to ask for more. It has no address. Ways in answer requests to it; everything
// else to it is refused by the [Baseline], which nothing excepts it from.
const InquiryHost = "egressd.internal"

// InquiryURL is the address to give to programs.
const InquiryURL = "http://" + InquiryHost + "/"

// IsInquiry reports whether a way in answers d itself.
func IsInquiry(d *Destination) bool { return d.Host == InquiryHost && d.Port == 80 }
