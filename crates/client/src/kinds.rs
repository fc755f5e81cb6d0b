//! Informers of the kinds that several components watch: compiled here, once (`api::shared_kinds` says why).

use crate::InformerFactory;

macro_rules! informers {
    ($($kind:ty),* $(,)?) => {
        #[used]
        static INFORMERS: &[fn(&InformerFactory)] =
            &[$(|informers| drop(informers.informer::<$kind>())),*, |informers| drop(informers.informer::<api::cached::Pod>())];
    };
}
api::shared_kinds!(informers);
